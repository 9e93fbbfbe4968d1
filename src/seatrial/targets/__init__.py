"""What launches jobs: one file or folder a target."""
