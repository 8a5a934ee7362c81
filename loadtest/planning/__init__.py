"""`tutti calibrate` and `tutti plan`: measured costs in, capacity out."""
