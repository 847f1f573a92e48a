"""`python -m echelon.run` takes the flags of OpenSeq2Seq's run.py; see docs/moving-over.md."""

from echelon.cli.old_command import main
from echelon.migrate.openseq2seq.command import translate

if __name__ == "__main__":
    main(translate)
