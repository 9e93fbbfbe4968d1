"""Facts of host, network and devices, one reader each: standard library only, never torch."""
