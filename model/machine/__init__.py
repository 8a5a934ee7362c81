"""What this machine computes with: instructions, compiled code and where it is kept, devices, precisions, threads."""
