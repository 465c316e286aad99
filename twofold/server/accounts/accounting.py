"""What is written down of every request that ended: its bill, its record, the sums, and what observers are told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from twofold.core.errors import NotFoundError, quoted
from twofold.observe.accounting.bill import Bill, make_bill
from twofold.observe.accounting.prices import PriceSheet
from twofold.observe.served import ServedObserver, ServedRequest
from twofold.server.accounts.record import RequestAccount
from twofold.server.accounts.usage import UsageStore
from twofold.server.exchange import RequestContext

DEFAULT_MOST: Final = 1_000
DEFAULT_PROMPTS: Final = 8_000
"""Prompts of kept requests; a prompt takes about 1.5 KiB, and one request may have thousands."""


class RecentRequests:
    """The ``most`` requests that ended last, fewer where they have more than ``max_prompts`` together.

    A tenant sees its own; those of others are not there for it, whatever names clients give to their requests.
    """

    def __init__(self, most: int = DEFAULT_MOST, max_prompts: int = DEFAULT_PROMPTS) -> None:
        self._most = most
        self._max_prompts = max_prompts
        self._prompts = 0
        self._accounts: OrderedDict[tuple[str, str], RequestAccount] = OrderedDict()

    def add(self, account: RequestAccount) -> None:
        """Keeps it; records are made of it only when somebody asks."""
        name = (account.served.tenant, account.served.request_id)
        before = self._accounts.pop(name, None)
        self._prompts += _prompts(account) - (0 if before is None else _prompts(before))
        self._accounts[name] = account.brief()
        while len(self._accounts) > self._most or (self._prompts > self._max_prompts and len(self._accounts) > 1):
            _, oldest = self._accounts.popitem(last=False)
            self._prompts -= _prompts(oldest)

    def data(self, tenant: str, request_id: str) -> dict[str, Any]:
        """The record of a tenant's request. NotFoundError where it runs, never was, or was too long ago."""
        account = self._accounts.get((tenant, request_id))
        if account is None:
            raise NotFoundError(
                f"No request {quoted(request_id)} ended recently.",
                hint=f"The last {self._most:,} are kept; ids are in the header x-request-id.",
            )
        return account.data()

    def __len__(self) -> int:
        return len(self._accounts)


def _prompts(account: RequestAccount) -> int:
    return len(account.served.reports)


class Accounting:
    """Without a ``sheet`` nothing has a price."""

    def __init__(
        self,
        sheet: PriceSheet | None,
        recent: RecentRequests,
        usage: UsageStore,
        observers: Sequence[ServedObserver],
    ) -> None:
        self._sheet = sheet
        self.recent = recent
        self.usage = usage
        self._observers = observers

    def explained(self, exchange: RequestContext) -> dict[str, Any]:
        """The record of an exchange whose answer is whole, and that ends now."""
        return self._account(exchange).data()

    def close(self, exchange: RequestContext) -> None:
        """Writes down an exchange that has ended."""
        account = self._account(exchange)
        if exchange.facts is not None:
            self.usage.add(account.served, account.bill)
            self.recent.add(account)
        for observer in self._observers:
            observer.on_served(account.served)

    def _account(self, exchange: RequestContext) -> RequestAccount:
        served = exchange.served()
        exchange.bill = bill = self._bill(served)
        if bill is not None:
            served = replace(served, cost=float(bill.total), currency=bill.currency)
        return RequestAccount(served, exchange.ceilings, bill, exchange.retries)

    def _bill(self, served: ServedRequest) -> Bill | None:
        if self._sheet is None or not served.reports:
            return None
        return make_bill(served.reports, served.written_tokens, self._sheet, served.model, served.tier)
