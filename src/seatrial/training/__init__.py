"""The reference training: one trainer, its data sets, models and strategies. It imports torch and, of seatrial, only
errors.

Read in this order:

1. ``trainer.py``: the function ``train``, from top to bottom. 2. ``recipe.py``: everything that decides the result of a
training; ``defaults.py`` has one recipe per data set. 3. ``batches.py`` and ``sampling.py``: which samples each rank
trains on, and how they reach the device.

Then by interest: ``sync_points.py`` (when the ranks exchange their losses), ``resume.py`` and ``checkpoint.py`` (saving
and resuming), ``strategies/strategy.py`` (how ranks share a model), ``data/`` and ``models/``. docs/training.md
explains the choices.
"""
