"""The settings of a short fit, for tests that need no accurate estimator."""

SHORT = {"members": 1, "max_iter": 20, "random_state": 0}
