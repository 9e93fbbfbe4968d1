"""The Slurm target."""
