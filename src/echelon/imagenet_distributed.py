"""`python -m echelon.imagenet_distributed` takes -n, -g, -nr and --epochs; see docs/moving-over.md."""

from echelon.fronts.front import main
from echelon.fronts.imagenet import translate

if __name__ == "__main__":
    main(translate)
