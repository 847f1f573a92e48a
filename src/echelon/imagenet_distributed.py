"""`python -m echelon.imagenet_distributed` takes -n, -g, -nr and --epochs; see docs/moving-over.md."""

from echelon.cli.old_command import main
from echelon.migrate.imagenet_command import translate

if __name__ == "__main__":
    main(translate)
