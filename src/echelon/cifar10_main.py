"""`python -m echelon.cifar10_main` takes the flags of TensorFlow's CIFAR-10 tutorial; see docs/moving-over.md."""

from echelon.fronts.cifar10 import translate
from echelon.fronts.front import main

if __name__ == "__main__":
    main(translate)
