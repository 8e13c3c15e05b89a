"""``python -m bench netns``: network namespaces of this machine as nodes, with links of limited rate.

May import: scale, system, throughput.
"""
