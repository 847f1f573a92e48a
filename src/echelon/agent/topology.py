"""Who talks to whom: every host has connections to a few hubs, so what it costs does not grow with the cluster.

The hubs are the first hosts, in order, that are heard and can lead: usually the leader and its deputies, who hear all
that it hears. If all hubs fall silent, the next hosts in order become hubs, and the first of them leads. Hubs answer
everybody who calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from echelon.agent.generation import LEADER, HeardHosts, Heartbeat, Rules, find_present

NUM_HUBS = 3
"""The leader and two deputies."""


def choose_hubs(
    mine: Heartbeat, view: HeardHosts, called: Mapping[int, float], now: float, rules: Rules
) -> dict[int, float]:
    """Return the hosts that this one calls, itself among them if it is a hub, and since when each has been called.

    `called` is what was returned the last time. Leaders are called wherever they stand in the order.
    """
    if rules.is_fixed:
        return {LEADER: called.get(LEADER, now)}
    generations = [mine.generation] + [
        heard.heartbeat.generation
        for heard in view.values()
        if heard.heartbeat.is_led and heard.age_s < rules.silence_s
    ]
    leaders = {generation.leader for generation in generations if generation}
    first = _find_first(mine, view, called, now, rules)
    return {host: called.get(host, now) for host in sorted(leaders.union(first))}


def _find_first(
    mine: Heartbeat, view: HeardHosts, called: Mapping[int, float], now: float, rules: Rules
) -> Iterator[int]:
    """Yield the first hosts until enough of them are hubs; as long as too few hosts are there, also some that are not.

    A host that was called for `silence_s` in vain is silent, and others are tried: each time as many as are silent.
    """
    present = find_present(mine, view, rules)
    num_hubs = num_tried = num_silent = 0
    for host in range(rules.num_hosts):
        if num_hubs >= NUM_HUBS and (len(present) >= rules.fewest or host in present):
            continue
        if num_tried >= max(NUM_HUBS, num_silent):
            return
        yield host
        said = mine if host == mine.host else None
        if host in view and view[host].age_s < rules.silence_s:
            said = view[host].heartbeat
        if said is not None:
            num_hubs += said.can_lead and not said.leaving
        elif now - called.get(host, now) > rules.silence_s:
            num_silent += 1
        else:
            num_tried += 1
