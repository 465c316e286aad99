"""POST /v1/twofold/explain, /curve, /price and /plans: work of the helper process (``server/planning``)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from msgspec import to_builtins

from twofold.api.body import encode
from twofold.core.errors import ModelNotFoundError
from twofold.server.accounting import RecentRequests
from twofold.server.edge.body import ClientGoneError
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse, done_before_disconnect
from twofold.server.models.registry import ModelRegistry, ServedModel
from twofold.server.planning.bodies import HERE, CurveRequest, ExplainRequest, PlanRequest, PriceRequest, Values
from twofold.server.planning.jobs import PlanJobs
from twofold.server.planning.plain import to_plain
from twofold.server.planning.process import PlannerProcess
from twofold.server.planning.replies import PlanDeleted, PlanJobReply


class PlannerEndpoint:
    """Handlers that ask the process of the planner."""

    def __init__(
        self, planner: PlannerProcess, jobs: PlanJobs, registry: ModelRegistry, recent: RecentRequests
    ) -> None:
        self._planner = planner
        self._jobs = jobs
        self._registry = registry
        self._recent = recent

    async def explain(self, asked: EndpointRequest) -> EndpointResponse:
        """A scenario; or a recent request of the tenant, as it was measured and, if its model is loaded, predicted."""
        request = await asked.read(ExplainRequest.read)
        values = _values(request)
        if request.request is not None:
            record = self._recent.data(asked.tenant, request.request)
            values["record"] = encode(record).decode()
            values.setdefault("model", record.model)
            served = self._served(values["model"])
            if "hardware" not in values and served is not None and _machine(served) is not None:
                values["hardware"] = HERE
        else:
            values.setdefault("hardware", HERE)
        return await self._answer(asked, "explain", self._placed(values))

    async def curve(self, asked: EndpointRequest) -> EndpointResponse:
        values = _values(await asked.read(CurveRequest.read))
        return await self._answer(asked, "curve", self._placed(values))

    async def price(self, asked: EndpointRequest) -> EndpointResponse:
        return await self._answer(asked, "price", _values(await asked.read(PriceRequest.read)))

    async def create_plan(self, asked: EndpointRequest) -> PlanJobReply:
        values = _values(await asked.read(PlanRequest.read))
        return self._jobs.create(asked.tenant, asked.context.source, values)

    async def get_plan(self, asked: EndpointRequest) -> PlanJobReply:
        return self._jobs.get(asked.tenant, asked.path["plan_id"])

    async def delete_plan(self, asked: EndpointRequest) -> PlanDeleted:
        """Stops the plan if it has not ended."""
        self._jobs.delete(asked.tenant, asked.path["plan_id"])
        return PlanDeleted(id=asked.path["plan_id"])

    async def _answer(self, asked: EndpointRequest, task: str, values: Values) -> EndpointResponse:
        work = asyncio.create_task(self._planner.run(asked.context.source, task, values))
        if not await done_before_disconnect(work, asked.receive):
            raise ClientGoneError
        return EndpointResponse(work.result())

    def _placed(self, values: Values) -> Values:
        """The values with the description of the server's own model and machine, if they are named."""
        served = self._served(values.get("model"))
        machines = [values.get("hardware"), *(each["hardware"] for each in values.get("machines", ()))]
        here: Values = {}
        if served is not None and served.reading is not None:
            values["model"] = served.names[0]
            here["shape"] = to_plain(replace(served.reading.spec, name=served.names[0]))
        if HERE in machines:
            known = [served, *self._registry.models] if served is not None else self._registry.models
            ceilings = next((found for model in known if (found := _machine(model)) is not None), None)
            if ceilings is not None:
                here |= {"machine": to_plain(ceilings.machine), "how": to_plain(ceilings.how)}
        return values | {"here": here}

    def _served(self, name: str | None) -> ServedModel | None:
        """The served model of that name, the first one for None; None for other names."""
        try:
            return self._registry.find(name, exactly=True)
        except ModelNotFoundError:
            return None


def _machine(model: ServedModel) -> Any:
    """The model's step predictor on this machine; None if it is not loaded, or the machine was not measured."""
    return None if model.worker is None else model.worker.ceilings


def _values(body: Any) -> Values:
    """The fields that the caller gave, and defaults, as plain data."""
    found: Values = to_builtins(body)
    return {name: value for name, value in found.items() if value is not None}
