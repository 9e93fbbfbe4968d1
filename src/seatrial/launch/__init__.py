"""Where a job runs: the job, what a target is, and one file a target."""
