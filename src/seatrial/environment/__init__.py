"""The environment of this process: the variables that launchers set, and the location of seatrial's code."""
