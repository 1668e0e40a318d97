"""tseries: values over time (not here yet)."""
