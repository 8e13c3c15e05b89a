"""Processes that train together: who this process is, how ranks meet, agree on a run and share it; gangs.

May import: checkpoint, delivery, executors, plan, shard.
In: a job, and what the launcher tells its processes.
Out: the session of the shared run; of `run_gang`, what the trainers return.
"""
