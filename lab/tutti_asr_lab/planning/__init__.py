"""`tutti calibrate` and `tutti plan`: measure costs, and estimate capacity from them."""
