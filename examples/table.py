"""Forecast rows of a table with intervals, and compare their coverage with what they promise."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from sdebnn import SDEBNNRegressor


def main() -> None:
    X, y = load_diabetes(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = SDEBNNRegressor(random_state=0).fit(X_train, y_train)
    forecast = model.forecast(X_test, coverage=0.9)
    lower, upper = forecast.interval
    print(f"the family that predicts best: {model.family_}")
    print(f"coverage of the 90 % intervals: {np.mean((lower <= y_test) & (y_test <= upper)):.2f}")
    print(f"root mean squared error: {np.sqrt(np.mean((forecast.mean - y_test) ** 2)):.1f}")
    for row in np.argsort(forecast.std)[[0, -1]]:
        print(f"row {row}: {forecast.mean[row]:.0f} ± {forecast.std[row]:.0f}, truth {y_test[row]:.0f}")


if __name__ == "__main__":
    main()
