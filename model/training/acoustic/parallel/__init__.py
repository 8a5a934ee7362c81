"""Several processes that train one network: sums in a fixed order, launching, and the end when one of them is gone."""
