"""`python -m echelon.run` takes the flags of OpenSeq2Seq's run.py; see docs/moving-over.md."""

from echelon.fronts.front import main
from echelon.fronts.openseq2seq import translate

if __name__ == "__main__":
    main(translate)
