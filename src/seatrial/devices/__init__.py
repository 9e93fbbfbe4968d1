"""Peak and attainable rates of device models, as data with their source."""
