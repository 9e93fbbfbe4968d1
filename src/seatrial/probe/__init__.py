"""Facts of host, network and devices, one reader each. Standard library only, never torch."""
