"""From a job to batches: eight floors, of which each imports only what stands below it.

    launch                          ranks of a launcher share a run
    shard | exchange                what a trainer reads; sources derived from others
    executors                       threads and Ray
    coordinator                     which task runs when, and what shards get
    checkpoint | loaders | quality  states; what frameworks iterate over; measures of the order
    plan                            the job, and what it will do: pure
    tasks | timeline                the work on blocks; a picture of a run
    delivery | statistics           batches in other formats; values in which time is told

The contracts "floors" and "cycles" in pyproject.toml enforce this. Rooms of one floor do not know each other. The first
file of each room says what it may import, what comes in and what goes out.
"""
