"""What is written down of every request that ended: its bill, its record, the sums, and what observers are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from twofold.observe.accounting.bill import Bill, make_bill
from twofold.observe.accounting.prices import PriceSheet
from twofold.observe.served import ServedObserver, ServedRequest
from twofold.server.accounts.recent import RecentRequests
from twofold.server.accounts.record import RequestAccount
from twofold.server.accounts.usage import UsageBook
from twofold.server.exchange import RequestContext


class Ledger:
    """Without a ``sheet`` nothing has a price."""

    def __init__(
        self,
        sheet: PriceSheet | None,
        recent: RecentRequests,
        usage: UsageBook,
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
