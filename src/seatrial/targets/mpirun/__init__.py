"""The mpirun target."""
