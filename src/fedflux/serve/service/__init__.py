"""The service: places clients, hands out models, answers, and watches whether clients drift away from the bundle."""
