from coldstart.rpc.v1 import cache_pb2 as _cache_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("version", "pid", "uptime_seconds", "mode", "addresses", "lookups", "open_lookups", "leases", "compiles", "compile_seconds", "compile_seconds_saved", "wait_seconds", "load_seconds", "fetch_seconds", "identify_seconds", "tiers", "events", "leases_kept", "fleet", "leases_trouble")
    class FleetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    OPEN_LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    COMPILES_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_SAVED_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FETCH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDENTIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LEASES_KEPT_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    LEASES_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    version: str
    pid: int
    uptime_seconds: float
    mode: _cache_pb2.Mode
    addresses: _containers.RepeatedScalarFieldContainer[str]
    lookups: _containers.RepeatedCompositeFieldContainer[LookupCount]
    open_lookups: int
    leases: int
    compiles: int
    compile_seconds: float
    compile_seconds_saved: float
    wait_seconds: float
    load_seconds: float
    fetch_seconds: float
    identify_seconds: float
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    leases_kept: str
    fleet: _containers.ScalarMap[str, float]
    leases_trouble: str
    def __init__(self, version: _Optional[str] = ..., pid: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., mode: _Optional[_Union[_cache_pb2.Mode, str]] = ..., addresses: _Optional[_Iterable[str]] = ..., lookups: _Optional[_Iterable[_Union[LookupCount, _Mapping]]] = ..., open_lookups: _Optional[int] = ..., leases: _Optional[int] = ..., compiles: _Optional[int] = ..., compile_seconds: _Optional[float] = ..., compile_seconds_saved: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., load_seconds: _Optional[float] = ..., fetch_seconds: _Optional[float] = ..., identify_seconds: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., leases_kept: _Optional[str] = ..., fleet: _Optional[_Mapping[str, float]] = ..., leases_trouble: _Optional[str] = ...) -> None: ...

class LookupCount(_message.Message):
    __slots__ = ("outcome", "reason", "tier", "count")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    outcome: _cache_pb2.Outcome
    reason: _cache_pb2.Reason
    tier: str
    count: int
    def __init__(self, outcome: _Optional[_Union[_cache_pb2.Outcome, str]] = ..., reason: _Optional[_Union[_cache_pb2.Reason, str]] = ..., tier: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("name", "url", "artifacts", "bytes", "limit_bytes", "operations", "trouble")
    class OperationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    url: str
    artifacts: int
    bytes: int
    limit_bytes: int
    operations: _containers.ScalarMap[str, int]
    trouble: str
    def __init__(self, name: _Optional[str] = ..., url: _Optional[str] = ..., artifacts: _Optional[int] = ..., bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., operations: _Optional[_Mapping[str, int]] = ..., trouble: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("unix_seconds", "kind", "message")
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    unix_seconds: float
    kind: str
    message: str
    def __init__(self, unix_seconds: _Optional[float] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GetDescriptorRequest(_message.Message):
    __slots__ = ("key", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: str
    limit: int
    def __init__(self, key: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetDescriptorReply(_message.Message):
    __slots__ = ("programs", "remembered")
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[RawProgram]
    remembered: int
    def __init__(self, programs: _Optional[_Iterable[_Union[RawProgram, _Mapping]]] = ..., remembered: _Optional[int] = ...) -> None: ...

class RawProgram(_message.Message):
    __slots__ = ("raw_digest", "descriptor", "rewrites", "abandoned")
    RAW_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    raw_digest: str
    descriptor: bytes
    rewrites: _containers.RepeatedCompositeFieldContainer[_cache_pb2.Rewrite]
    abandoned: str
    def __init__(self, raw_digest: _Optional[str] = ..., descriptor: _Optional[bytes] = ..., rewrites: _Optional[_Iterable[_Union[_cache_pb2.Rewrite, _Mapping]]] = ..., abandoned: _Optional[str] = ...) -> None: ...

class NearestRequest(_message.Message):
    __slots__ = ("key", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: str
    limit: int
    def __init__(self, key: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class NearestReply(_message.Message):
    __slots__ = ("keys", "searched")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SEARCHED_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[NearKey]
    searched: int
    def __init__(self, keys: _Optional[_Iterable[_Union[NearKey, _Mapping]]] = ..., searched: _Optional[int] = ...) -> None: ...

class NearKey(_message.Message):
    __slots__ = ("key", "record")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    key: str
    record: _cache_pb2.KeyRecord
    def __init__(self, key: _Optional[str] = ..., record: _Optional[_Union[_cache_pb2.KeyRecord, _Mapping]] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("keys", "digests", "producers", "programs", "platforms", "compilers", "rules", "made_before_unix", "made_after_unix", "unused_since_unix", "tiers")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    COMPILERS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    MADE_BEFORE_UNIX_FIELD_NUMBER: _ClassVar[int]
    MADE_AFTER_UNIX_FIELD_NUMBER: _ClassVar[int]
    UNUSED_SINCE_UNIX_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    digests: _containers.RepeatedScalarFieldContainer[str]
    producers: _containers.RepeatedScalarFieldContainer[str]
    programs: _containers.RepeatedScalarFieldContainer[str]
    platforms: _containers.RepeatedScalarFieldContainer[str]
    compilers: _containers.RepeatedScalarFieldContainer[str]
    rules: _containers.RepeatedScalarFieldContainer[str]
    made_before_unix: float
    made_after_unix: float
    unused_since_unix: float
    tiers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., digests: _Optional[_Iterable[str]] = ..., producers: _Optional[_Iterable[str]] = ..., programs: _Optional[_Iterable[str]] = ..., platforms: _Optional[_Iterable[str]] = ..., compilers: _Optional[_Iterable[str]] = ..., rules: _Optional[_Iterable[str]] = ..., made_before_unix: _Optional[float] = ..., made_after_unix: _Optional[float] = ..., unused_since_unix: _Optional[float] = ..., tiers: _Optional[_Iterable[str]] = ...) -> None: ...

class ListStoredRequest(_message.Message):
    __slots__ = ("selection",)
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("selection", "dry_run", "everything", "negatives")
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    dry_run: bool
    everything: bool
    negatives: bool
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ..., dry_run: bool = ..., everything: bool = ..., negatives: bool = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("selection", "put_aside")
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    PUT_ASIDE_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    put_aside: bool
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ..., put_aside: bool = ...) -> None: ...

class TidyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TidyReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class UpkeepReply(_message.Message):
    __slots__ = ("rows", "negatives")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[UpkeepRow]
    negatives: int
    def __init__(self, rows: _Optional[_Iterable[_Union[UpkeepRow, _Mapping]]] = ..., negatives: _Optional[int] = ...) -> None: ...

class UpkeepRow(_message.Message):
    __slots__ = ("tier", "outcome", "detail", "of", "key", "digest", "program_name", "platform", "producer", "compiler", "bytes", "compile_seconds", "created_unix", "used_unix")
    TIER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    COMPILER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_FIELD_NUMBER: _ClassVar[int]
    USED_UNIX_FIELD_NUMBER: _ClassVar[int]
    tier: str
    outcome: str
    detail: str
    of: int
    key: str
    digest: str
    program_name: str
    platform: str
    producer: str
    compiler: str
    bytes: int
    compile_seconds: float
    created_unix: float
    used_unix: float
    def __init__(self, tier: _Optional[str] = ..., outcome: _Optional[str] = ..., detail: _Optional[str] = ..., of: _Optional[int] = ..., key: _Optional[str] = ..., digest: _Optional[str] = ..., program_name: _Optional[str] = ..., platform: _Optional[str] = ..., producer: _Optional[str] = ..., compiler: _Optional[str] = ..., bytes: _Optional[int] = ..., compile_seconds: _Optional[float] = ..., created_unix: _Optional[float] = ..., used_unix: _Optional[float] = ...) -> None: ...

class ActivityRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ActivityReply(_message.Message):
    __slots__ = ("programs", "recent", "live")
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[ProgramSum]
    recent: _containers.RepeatedCompositeFieldContainer[MissedLookup]
    live: _containers.RepeatedCompositeFieldContainer[LiveCompile]
    def __init__(self, programs: _Optional[_Iterable[_Union[ProgramSum, _Mapping]]] = ..., recent: _Optional[_Iterable[_Union[MissedLookup, _Mapping]]] = ..., live: _Optional[_Iterable[_Union[LiveCompile, _Mapping]]] = ...) -> None: ...

class ProgramSum(_message.Message):
    __slots__ = ("outcome", "reason", "program_name", "count", "compile_seconds")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    outcome: _cache_pb2.Outcome
    reason: _cache_pb2.Reason
    program_name: str
    count: int
    compile_seconds: float
    def __init__(self, outcome: _Optional[_Union[_cache_pb2.Outcome, str]] = ..., reason: _Optional[_Union[_cache_pb2.Reason, str]] = ..., program_name: _Optional[str] = ..., count: _Optional[int] = ..., compile_seconds: _Optional[float] = ...) -> None: ...

class MissedLookup(_message.Message):
    __slots__ = ("unix_seconds", "outcome", "reason", "program_name", "key", "holder", "compile_seconds")
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    unix_seconds: float
    outcome: _cache_pb2.Outcome
    reason: _cache_pb2.Reason
    program_name: str
    key: str
    holder: str
    compile_seconds: float
    def __init__(self, unix_seconds: _Optional[float] = ..., outcome: _Optional[_Union[_cache_pb2.Outcome, str]] = ..., reason: _Optional[_Union[_cache_pb2.Reason, str]] = ..., program_name: _Optional[str] = ..., key: _Optional[str] = ..., holder: _Optional[str] = ..., compile_seconds: _Optional[float] = ...) -> None: ...

class LiveCompile(_message.Message):
    __slots__ = ("key", "program_name", "holder", "seconds", "expected_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    program_name: str
    holder: str
    seconds: float
    expected_seconds: float
    def __init__(self, key: _Optional[str] = ..., program_name: _Optional[str] = ..., holder: _Optional[str] = ..., seconds: _Optional[float] = ..., expected_seconds: _Optional[float] = ...) -> None: ...
