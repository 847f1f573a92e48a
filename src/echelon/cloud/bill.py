"""The bill of a cluster, as pure functions of the spec, the price list and the hours."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.cloud.cluster_spec import ClusterSpec
from echelon.cloud.prices import HOURS_PER_MONTH, PriceList, machine, price, price_list
from echelon.errors import UserError

SHORTEST_HOURS = 0.25
"""Below this a budget buys no training: machines need minutes to start, and minutes to save."""
_SPOT_HEADROOM = 1.25
"""How much more than now a spot machine may come to cost an hour before a budget ends it."""


@dataclass(frozen=True)
class Bill:
    """What a cluster costs, in US dollars."""

    machines_hour: float
    disks_hour: float
    addresses_hour: float
    shared_hour: float
    """The shared file system, which costs money until it is removed."""
    max_hours: float
    """After this time the machines terminate by themselves."""
    is_limited_by_budget: bool
    price_date: str
    price_source: str
    most_hour: float
    """What the cluster costs an hour at most: spot machines are ordered with a maximum price."""
    max_price: float | None = None
    """That price, of one machine."""

    @property
    def hourly(self) -> float:
        return self.machines_hour + self.disks_hour + self.addresses_hour + self.shared_hour

    @property
    def most(self) -> float:
        """The cost if the cluster runs until its deadline."""
        return self.most_hour * self.max_hours

    def after(self, hours: float) -> float:
        """The cost after `hours` hours."""
        return self.hourly * min(hours, self.max_hours) + self.shared_hour * max(0.0, hours - self.max_hours)


def estimate(spec: ClusterSpec, machine_hourly: float | None = None) -> Bill:
    """The bill of a cluster; `machine_hourly` is one machine's price if it is known better than from the list.

    UserError if the hours or the budget are too few for any training.
    """
    prices = price_list(spec.provider)
    each = machine_hourly or price(spec.provider, spec.type, spec.spot, spec.region)
    ceiling, processors = _ceiling(spec, each), machine(spec.provider, spec.type).credits_hourly
    parts = _hourly_parts(spec, prices, each + processors)
    most = sum(_hourly_parts(spec, prices, ceiling + processors))
    affordable = spec.budget / most if spec.budget else spec.hours
    max_hours = min(spec.hours, affordable)
    if spec.hours < SHORTEST_HOURS:
        raise UserError(
            f"hours = {spec.hours:g}: machines need minutes to start, and minutes to save; "
            f"give at least {SHORTEST_HOURS:g}"
        )
    if max_hours < SHORTEST_HOURS:
        raise UserError(
            f"budget = {spec.budget:g}: {spec.count} x {spec.type} cost up to ${most:.2f} an hour, so it lasts "
            f"{max_hours * 60:.0f} minutes; raise it, or use fewer or cheaper machines"
        )
    is_limited, max_price = affordable < spec.hours, ceiling if spec.spot else None
    return Bill(*parts, max_hours, is_limited, str(prices.date), prices.source, most, max_price)


def _ceiling(spec: ClusterSpec, each: float) -> float:
    """Return the most that one machine may cost per hour; with a budget, little more than now, so that it lasts."""
    if not spec.spot:
        return each
    on_demand = price(spec.provider, spec.type, False, spec.region)
    return max(each, min(on_demand, each * _SPOT_HEADROOM) if spec.budget else on_demand)


def _hourly_parts(spec: ClusterSpec, prices: PriceList, each: float) -> tuple[float, float, float, float]:
    other = prices.other
    return (
        spec.count * each,
        spec.count * spec.disk_gb * other.disk_gb_month / HOURS_PER_MONTH,
        0.0 if spec.is_private else spec.count * other.address_hour,
        spec.shared_gb * other.shared_gb_month / HOURS_PER_MONTH if spec.shared else 0.0,
    )


def format_bill(spec: ClusterSpec, bill: Bill) -> str:
    """The bill before anything is made."""
    kind = "spot" if spec.spot else "on demand"
    processors = spec.count * machine(spec.provider, spec.type).credits_hourly
    credits_ = f"  (${processors:.2f} of it for processor credits)" if processors else ""
    lines = [
        f"{spec.name}: {spec.count} x {spec.type} ({kind}) in {spec.region}",
        f"  machines          ${bill.machines_hour:8.2f} an hour{credits_}",
        f"  their disks       ${bill.disks_hour:8.2f} an hour  ({spec.count} x {spec.disk_gb} GB)",
        f"  public addresses  ${bill.addresses_hour:8.2f} an hour",
    ]
    if spec.shared:
        lines.append(f"  shared files      ${bill.shared_hour:8.2f} an hour  ({spec.shared_gb:g} GB)")
    why = "the budget" if bill.is_limited_by_budget else "hours"
    return "\n".join(
        [
            *lines,
            f"  together          ${bill.hourly:8.2f} an hour"
            + (f", at most ${bill.most_hour:.2f} an hour if spot prices rise" if bill.max_price else ""),
            f"  at most           ${bill.most:8.2f}: the machines terminate by themselves after "
            f"{bill.max_hours:.1f} hours ({why})",
            f"  prices of {bill.price_date} ({bill.price_source}); traffic to the internet is extra",
            *_format_images(spec),
        ]
    )


def _format_images(spec: ClusterSpec) -> list[str]:
    """What the file has the machines run, other than AWS's own image: a reader of somebody else's file is to see it."""
    named = [
        f"{kind} {name}" for kind, name in (("image", spec.image), ("container", spec.container)) if name
    ]
    if not named:
        return []
    reach = f"the machines and what they may do with {spec.bucket}" if spec.bucket else "the machines"
    return [f"  runs {' and '.join(named)}: whoever made that controls {reach}"]
