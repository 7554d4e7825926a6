from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_HIT: _ClassVar[Outcome]
    OUTCOME_MISS: _ClassVar[Outcome]
    OUTCOME_ERROR: _ClassVar[Outcome]
    OUTCOME_TIMEOUT: _ClassVar[Outcome]
    OUTCOME_REFUSED: _ClassVar[Outcome]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_OK: _ClassVar[Reason]
    REASON_WAITED: _ClassVar[Reason]
    REASON_COLD: _ClassVar[Reason]
    REASON_EVICTED: _ClassVar[Reason]
    REASON_CORRUPT: _ClassVar[Reason]
    REASON_IDENTITY_MISMATCH: _ClassVar[Reason]
    REASON_GROUP_MISMATCH: _ClassVar[Reason]
    REASON_SIGNATURE: _ClassVar[Reason]
    REASON_KEY_MISMATCH: _ClassVar[Reason]
    REASON_TARGET_MISMATCH: _ClassVar[Reason]
    REASON_PARTITIONS: _ClassVar[Reason]
    REASON_CPU_FEATURES: _ClassVar[Reason]
    REASON_CODEC: _ClassVar[Reason]
    REASON_FORMAT: _ClassVar[Reason]
    REASON_CALLBACKS: _ClassVar[Reason]
    REASON_POINTER: _ClassVar[Reason]
    REASON_LATE_FLAGS: _ClassVar[Reason]
    REASON_PGLE: _ClassVar[Reason]
    REASON_DEVICE_COORDINATES: _ClassVar[Reason]
    REASON_UNSHAREABLE: _ClassVar[Reason]
    REASON_TOO_SMALL: _ClassVar[Reason]
    REASON_TOO_LARGE: _ClassVar[Reason]
    REASON_QUOTA: _ClassVar[Reason]
    REASON_ROLE: _ClassVar[Reason]
    REASON_NEGATIVE_COMPILE: _ClassVar[Reason]
    REASON_NEGATIVE_OOM: _ClassVar[Reason]
    REASON_NEGATIVE_TIMEOUT: _ClassVar[Reason]
    REASON_NEGATIVE_CRASH: _ClassVar[Reason]
    REASON_MODE_OBSERVE: _ClassVar[Reason]
    REASON_DISABLED: _ClassVar[Reason]
    REASON_VERSION: _ClassVar[Reason]
    REASON_TIER_DOWN: _ClassVar[Reason]
    REASON_BREAKER_OPEN: _ClassVar[Reason]
    REASON_DEADLINE: _ClassVar[Reason]
    REASON_LEASE_LOST: _ClassVar[Reason]
    REASON_DAEMON_ABSENT: _ClassVar[Reason]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_OBSERVE: _ClassVar[Mode]
    MODE_EXACT: _ClassVar[Mode]
    MODE_CANONICAL: _ClassVar[Mode]

class KeyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_STATE_UNSPECIFIED: _ClassVar[KeyState]
    KEY_STATE_ABSENT: _ClassVar[KeyState]
    KEY_STATE_PRESENT: _ClassVar[KeyState]
    KEY_STATE_LEASED: _ClassVar[KeyState]
    KEY_STATE_NEGATIVE: _ClassVar[KeyState]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_HIT: Outcome
OUTCOME_MISS: Outcome
OUTCOME_ERROR: Outcome
OUTCOME_TIMEOUT: Outcome
OUTCOME_REFUSED: Outcome
REASON_UNSPECIFIED: Reason
REASON_OK: Reason
REASON_WAITED: Reason
REASON_COLD: Reason
REASON_EVICTED: Reason
REASON_CORRUPT: Reason
REASON_IDENTITY_MISMATCH: Reason
REASON_GROUP_MISMATCH: Reason
REASON_SIGNATURE: Reason
REASON_KEY_MISMATCH: Reason
REASON_TARGET_MISMATCH: Reason
REASON_PARTITIONS: Reason
REASON_CPU_FEATURES: Reason
REASON_CODEC: Reason
REASON_FORMAT: Reason
REASON_CALLBACKS: Reason
REASON_POINTER: Reason
REASON_LATE_FLAGS: Reason
REASON_PGLE: Reason
REASON_DEVICE_COORDINATES: Reason
REASON_UNSHAREABLE: Reason
REASON_TOO_SMALL: Reason
REASON_TOO_LARGE: Reason
REASON_QUOTA: Reason
REASON_ROLE: Reason
REASON_NEGATIVE_COMPILE: Reason
REASON_NEGATIVE_OOM: Reason
REASON_NEGATIVE_TIMEOUT: Reason
REASON_NEGATIVE_CRASH: Reason
REASON_MODE_OBSERVE: Reason
REASON_DISABLED: Reason
REASON_VERSION: Reason
REASON_TIER_DOWN: Reason
REASON_BREAKER_OPEN: Reason
REASON_DEADLINE: Reason
REASON_LEASE_LOST: Reason
REASON_DAEMON_ABSENT: Reason
MODE_UNSPECIFIED: Mode
MODE_OBSERVE: Mode
MODE_EXACT: Mode
MODE_CANONICAL: Mode
KEY_STATE_UNSPECIFIED: KeyState
KEY_STATE_ABSENT: KeyState
KEY_STATE_PRESENT: KeyState
KEY_STATE_LEASED: KeyState
KEY_STATE_NEGATIVE: KeyState

class HelloRequest(_message.Message):
    __slots__ = ("client_version", "scheme", "holder")
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    client_version: str
    scheme: str
    holder: str
    def __init__(self, client_version: _Optional[str] = ..., scheme: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("daemon_version", "scheme", "mode", "volume", "min_compile_seconds", "lease_seconds", "heartbeat_seconds")
    DAEMON_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    MIN_COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    daemon_version: str
    scheme: str
    mode: Mode
    volume: Volume
    min_compile_seconds: float
    lease_seconds: float
    heartbeat_seconds: float
    def __init__(self, daemon_version: _Optional[str] = ..., scheme: _Optional[str] = ..., mode: _Optional[_Union[Mode, str]] = ..., volume: _Optional[_Union[Volume, _Mapping]] = ..., min_compile_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class Volume(_message.Message):
    __slots__ = ("root", "nonce_path")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_PATH_FIELD_NUMBER: _ClassVar[int]
    root: str
    nonce_path: str
    def __init__(self, root: _Optional[str] = ..., nonce_path: _Optional[str] = ...) -> None: ...

class Component(_message.Message):
    __slots__ = ("name", "value", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    detail: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class KeyRecord(_message.Message):
    __slots__ = ("scheme", "components", "program_name", "versions", "notes")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    components: _containers.RepeatedCompositeFieldContainer[Component]
    program_name: str
    versions: _containers.ScalarMap[str, str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scheme: _Optional[str] = ..., components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ..., program_name: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("cpu_features", "volume_proof", "mode", "planned")
    CPU_FEATURES_FIELD_NUMBER: _ClassVar[int]
    VOLUME_PROOF_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    cpu_features: _containers.RepeatedScalarFieldContainer[str]
    volume_proof: bytes
    mode: Mode
    planned: bool
    def __init__(self, cpu_features: _Optional[_Iterable[str]] = ..., volume_proof: _Optional[bytes] = ..., mode: _Optional[_Union[Mode, str]] = ..., planned: bool = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("lookup_id", "namespace", "host", "holder", "estimate_seconds", "raw_digest", "descriptor", "record", "final_program", "may_hit")
    LOOKUP_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RAW_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    FINAL_PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MAY_HIT_FIELD_NUMBER: _ClassVar[int]
    lookup_id: str
    namespace: str
    host: Host
    holder: str
    estimate_seconds: float
    raw_digest: str
    descriptor: bytes
    record: KeyRecord
    final_program: FinalProgram
    may_hit: bool
    def __init__(self, lookup_id: _Optional[str] = ..., namespace: _Optional[str] = ..., host: _Optional[_Union[Host, _Mapping]] = ..., holder: _Optional[str] = ..., estimate_seconds: _Optional[float] = ..., raw_digest: _Optional[str] = ..., descriptor: _Optional[bytes] = ..., record: _Optional[_Union[KeyRecord, _Mapping]] = ..., final_program: _Optional[_Union[FinalProgram, _Mapping]] = ..., may_hit: bool = ...) -> None: ...

class FinalProgram(_message.Message):
    __slots__ = ("descriptor", "record")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    descriptor: bytes
    record: KeyRecord
    def __init__(self, descriptor: _Optional[bytes] = ..., record: _Optional[_Union[KeyRecord, _Mapping]] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("need_descriptor", "rewrites", "hit", "lease", "wait", "refused", "mode", "key", "record")
    NEED_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    need_descriptor: NeedDescriptor
    rewrites: Rewrites
    hit: Hit
    lease: Lease
    wait: Wait
    refused: Refused
    mode: Mode
    key: str
    record: KeyRecord
    def __init__(self, need_descriptor: _Optional[_Union[NeedDescriptor, _Mapping]] = ..., rewrites: _Optional[_Union[Rewrites, _Mapping]] = ..., hit: _Optional[_Union[Hit, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., mode: _Optional[_Union[Mode, str]] = ..., key: _Optional[str] = ..., record: _Optional[_Union[KeyRecord, _Mapping]] = ...) -> None: ...

class NeedDescriptor(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ("rule", "function", "op", "attribute", "value", "reason")
    RULE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rule: str
    function: str
    op: int
    attribute: str
    value: str
    reason: str
    def __init__(self, rule: _Optional[str] = ..., function: _Optional[str] = ..., op: _Optional[int] = ..., attribute: _Optional[str] = ..., value: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Rewrites(_message.Message):
    __slots__ = ("rewrites",)
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    def __init__(self, rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ...) -> None: ...

class Hit(_message.Message):
    __slots__ = ("header", "path", "tier", "waited", "rewrites", "record", "signature")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    path: str
    tier: str
    waited: bool
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    record: KeyRecord
    signature: bytes
    def __init__(self, header: _Optional[bytes] = ..., path: _Optional[str] = ..., tier: _Optional[str] = ..., waited: bool = ..., rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ..., record: _Optional[_Union[KeyRecord, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "seconds", "reason", "rewrites")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    seconds: float
    reason: Reason
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    def __init__(self, lease_id: _Optional[str] = ..., seconds: _Optional[float] = ..., reason: _Optional[_Union[Reason, str]] = ..., rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("holder", "estimate_seconds", "max_wait_seconds", "rewrites")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    holder: str
    estimate_seconds: float
    max_wait_seconds: float
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    def __init__(self, holder: _Optional[str] = ..., estimate_seconds: _Optional[float] = ..., max_wait_seconds: _Optional[float] = ..., rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    message: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class AwaitRequest(_message.Message):
    __slots__ = ("lookup_id", "key", "max_wait_seconds")
    LOOKUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lookup_id: str
    key: str
    max_wait_seconds: float
    def __init__(self, lookup_id: _Optional[str] = ..., key: _Optional[str] = ..., max_wait_seconds: _Optional[float] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("lookup_id", "key", "digest")
    LOOKUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    lookup_id: str
    key: str
    digest: str
    def __init__(self, lookup_id: _Optional[str] = ..., key: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("lookup_id", "key", "digest", "reason")
    LOOKUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lookup_id: str
    key: str
    digest: str
    reason: Reason
    def __init__(self, lookup_id: _Optional[str] = ..., key: _Optional[str] = ..., digest: _Optional[str] = ..., reason: _Optional[_Union[Reason, str]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("start", "data")
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start: PublishStart
    data: bytes
    def __init__(self, start: _Optional[_Union[PublishStart, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PublishStart(_message.Message):
    __slots__ = ("lookup_id", "lease_id", "header", "record", "planned")
    LOOKUP_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    lookup_id: str
    lease_id: str
    header: bytes
    record: KeyRecord
    planned: bool
    def __init__(self, lookup_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., header: _Optional[bytes] = ..., record: _Optional[_Union[KeyRecord, _Mapping]] = ..., planned: bool = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("digest", "adopted", "kept_local")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    KEPT_LOCAL_FIELD_NUMBER: _ClassVar[int]
    digest: str
    adopted: bool
    kept_local: Reason
    def __init__(self, digest: _Optional[str] = ..., adopted: bool = ..., kept_local: _Optional[_Union[Reason, str]] = ...) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ("upload_id", "start", "data", "last")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    start: PublishStart
    data: bytes
    last: bool
    def __init__(self, upload_id: _Optional[str] = ..., start: _Optional[_Union[PublishStart, _Mapping]] = ..., data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("published",)
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    published: PublishReply
    def __init__(self, published: _Optional[_Union[PublishReply, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FailRequest(_message.Message):
    __slots__ = ("lease_id", "kind", "message")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    kind: Reason
    message: str
    def __init__(self, lease_id: _Optional[str] = ..., kind: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class FailReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("lookup_id", "key", "outcome", "reason", "tier", "program_name", "compile_seconds", "fetch_seconds", "load_seconds", "identify_seconds", "wait_seconds")
    LOOKUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FETCH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDENTIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lookup_id: str
    key: str
    outcome: Outcome
    reason: Reason
    tier: str
    program_name: str
    compile_seconds: float
    fetch_seconds: float
    load_seconds: float
    identify_seconds: float
    wait_seconds: float
    def __init__(self, lookup_id: _Optional[str] = ..., key: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[_Union[Reason, str]] = ..., tier: _Optional[str] = ..., program_name: _Optional[str] = ..., compile_seconds: _Optional[float] = ..., fetch_seconds: _Optional[float] = ..., load_seconds: _Optional[float] = ..., identify_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class FinishReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NoticeRequest(_message.Message):
    __slots__ = ("reason", "program_name", "message", "holder")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    program_name: str
    message: str
    holder: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., program_name: _Optional[str] = ..., message: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class NoticeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("namespace", "host", "keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    host: Host
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., host: _Optional[_Union[Host, _Mapping]] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class BatchReply(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[KeyAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[KeyAnswer, _Mapping]]] = ...) -> None: ...

class KeyAnswer(_message.Message):
    __slots__ = ("key", "state", "digest", "compile_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    state: KeyState
    digest: str
    compile_seconds: float
    def __init__(self, key: _Optional[str] = ..., state: _Optional[_Union[KeyState, str]] = ..., digest: _Optional[str] = ..., compile_seconds: _Optional[float] = ...) -> None: ...

class GetRecordRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class GetRecordReply(_message.Message):
    __slots__ = ("found", "record")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    found: bool
    record: KeyRecord
    def __init__(self, found: bool = ..., record: _Optional[_Union[KeyRecord, _Mapping]] = ...) -> None: ...
