"""`python -m echelon.cifar10_main` takes the flags of TensorFlow's CIFAR-10 tutorial; see docs/moving-over.md."""

from echelon.cli.old_command import main
from echelon.migrate.cifar10_command import translate

if __name__ == "__main__":
    main(translate)
