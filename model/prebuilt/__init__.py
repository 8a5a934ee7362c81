"""Machine code that is made before an installation: of an image, and of a wheel."""
