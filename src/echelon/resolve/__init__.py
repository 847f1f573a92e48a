"""Everything in a recipe that may be "auto", what it becomes, and the only writer of a run's recipe.toml.

    train.workers, train.batch    measured: a few steps of each candidate, before the run begins
    train.exchange                exchange: what the line and the hosts give, when the workers have met
    checkpoint.every              interval: what saving has cost in the first steps
    all of them                   earlier: what the run, or its mirror, has found before holds

What was found is written into the run's recipe (run_recipe) and kept when the run is resumed.
"""
