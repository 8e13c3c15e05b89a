"""Transforms in worker processes of this machine, for the threads executor: batches pass through shared memory."""
