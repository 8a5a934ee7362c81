"""Published graphs with products of 8-bit integers and static scales, for CPUs."""
