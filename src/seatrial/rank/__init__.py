"""The parts of a rank that checks measure with: its context, device, groups and planted faults."""
