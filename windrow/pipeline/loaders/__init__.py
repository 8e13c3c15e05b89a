"""What training frameworks iterate over: loaders, torch and TensorFlow datasets of a shard.

May import: delivery, plan, statistics, timeline.
In: a shard, by protocols: the shard is above, and mixes `LoaderMethods` in.
Out: objects whose loops are epochs, with a length and a state.
"""
