"""What the user holds: nine floors, of which each imports only what stands below it.

    sources | shuffle_report                     datasets of files and other data; measures of a pipeline
    dataset                                      `Dataset` and `DatasetPipeline`: each hands out the other
    operations | shard_methods | window_methods  the methods that only one of the two has
    readable                                     the methods that both have
    export                                       ``to_*``
    transforms | write                           ``map_batches`` and the like; ``write_*``
    epoch_iteration                              passes over the rows in this process
    logical_plan                                 what was called so far, as a frozen value
    argument_checks                              what several calls check alike

The contracts "dataset" and "cycles" in pyproject.toml enforce this. The first file of each room says what it may
import, what comes in and what goes out. `Dataset` and `DatasetPipeline` own nothing but a plan. Their methods stand in
base classes, one for each kind of call, and make a new plan or hand the plan to ``windrow.pipeline``.
"""
