"""An emulated cluster: network namespaces of this machine as nodes, with links of limited rate."""
