"""Commands that `--help` shows; a test parses each of them."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "": """\
echelon demo
echelon train recipes/digits.toml
echelon report digits --to digits.html
echelon COMMAND --help""",
    "demo": "echelon demo\nechelon translate runs/demo",
    "doctor": "echelon doctor\nechelon doctor --hosts alpha,beta",
    "describe": """\
echelon describe recipes/demo.toml
echelon describe recipes/wmt16-en-de-base.toml --set model.preset=big""",
    "prepare": "echelon prepare recipes/demo.toml",
    "plan": """\
echelon plan recipes/wmt16-en-de-base.toml --set train.precision=fp16 --on 4xg4dn.2xlarge --on "2x(2xV100, 1gbit)"
echelon plan recipes/demo.toml --on here --profile""",
    "benchmark": "echelon benchmark recipes/demo.toml --steps 10",
    "convert": """\
echelon convert openseq2seq en-de-base.py --to en-de-base.toml
echelon convert huggingface opus-mt-en-de --to runs/opus""",
    "train": """\
echelon train recipes/demo.toml --run runs/short --steps 100
echelon train recipes/demo.toml --workers 4 --set seed=2
echelon train runs/short
echelon train recipes/lab.toml --hosts alpha:2,beta:2 --install --sync
echelon train recipes/demo.toml --launcher slurm --nodes 4 --workers 2""",
    "search": """\
echelon search recipes/digits.toml --vary schedule.learning_rate=0.02..2:log --vary optimiser.weight_decay=0,5e-4
echelon search recipes/demo.toml --vary model.dropout=0.05,0.1,0.2 --sampler grid --rungs 0 --steps 200""",
    "runs": "echelon runs\nechelon runs --remove short",
    "status": "echelon status demo",
    "watch": "echelon watch demo\nechelon watch demo --web",
    "attach": "echelon attach demo",
    "stop": "echelon stop demo",
    "tensorboard": "echelon tensorboard demo",
    "dashboard": "echelon dashboard\nechelon dashboard runs ~/experiments --machine g4dn.2xlarge",
    "report": "echelon report demo\nechelon report demo --to demo.html --machine g4dn.2xlarge",
    "compare": """\
echelon compare short demo --to comparison.html
echelon compare short-seed1 short-seed2 long-seed1 long-seed2 --to table.tex""",
    "experiment": "echelon experiment checkpoints recipes/digits.toml --steps 100",
    "evaluate": """\
echelon evaluate demo --checkpoint best
echelon evaluate demo --source news.en --target news.de
echelon evaluate digits --images scans/""",
    "translate": """\
echo "The dog sleeps." | echelon translate demo --n-best 3
echelon translate demo --input book.en --output book.de""",
    "classify": "echelon classify digits seven.png --top 1",
    "export": "echelon export demo --to exported --format ctranslate2 --precision int8",
    "serve": "echelon serve demo --port 8080",
    "lab": """\
echelon lab up --hosts 4 --rate 1gbit
echelon lab kill host2
echelon lab down""",
    "lab up": "echelon lab up --hosts 4 --rate 1gbit --cpus 0.5",
    "lab down": "echelon lab down",
    "lab status": "echelon lab status",
    "lab cut": "echelon lab cut host2",
    "lab heal": "echelon lab heal host2",
    "lab kill": "echelon lab kill host4",
    "lab boot": "echelon lab boot host4",
    "lab freeze": "echelon lab freeze host3",
    "lab thaw": "echelon lab thaw host3",
    "lab rate": "echelon lab rate host3 50mbit",
    "cloud": """\
echelon cloud up cluster.toml
echelon train recipes/demo.toml --cluster wmt
echelon cloud down wmt""",
    "cloud up": "echelon cloud up cluster.toml",
    "cloud list": "echelon cloud list --region eu-central-1",
    "cloud ssh": "echelon cloud ssh wmt 1\nechelon cloud ssh wmt -L 6006",
    "cloud down": "echelon cloud down wmt",
    "cloud render": "echelon cloud render skypilot cluster.toml --recipe recipes/demo.toml",
    "cloud prices": "echelon cloud prices --refresh",
}


def examples_of(*words: str) -> str | None:
    """The examples of a verb, or of `echelon` itself."""
    return EXAMPLES.get(" ".join(words))
