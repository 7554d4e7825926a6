from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Effect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_BY_NAME: _ClassVar[Effect]
    EFFECT_PURE: _ClassVar[Effect]
    EFFECT_EFFECT: _ClassVar[Effect]

class Read(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_UNKNOWN: _ClassVar[Read]
    READ_YES: _ClassVar[Read]
    READ_NO: _ClassVar[Read]
EFFECT_BY_NAME: Effect
EFFECT_PURE: Effect
EFFECT_EFFECT: Effect
READ_UNKNOWN: Read
READ_YES: Read
READ_NO: Read

class GraphDescriptor(_message.Message):
    __slots__ = ("version", "framework", "program_name", "final", "strings", "values", "nodes", "operands", "attributes", "regions", "functions", "entry", "calls", "references", "inputs", "reads")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_NAME_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    version: int
    framework: str
    program_name: str
    final: bool
    strings: _containers.RepeatedScalarFieldContainer[str]
    values: Values
    nodes: Nodes
    operands: _containers.RepeatedScalarFieldContainer[int]
    attributes: Attributes
    regions: Regions
    functions: Functions
    entry: int
    calls: NodeFunctions
    references: NodeFunctions
    inputs: Inputs
    reads: ReadSets
    def __init__(self, version: _Optional[int] = ..., framework: _Optional[str] = ..., program_name: _Optional[str] = ..., final: bool = ..., strings: _Optional[_Iterable[str]] = ..., values: _Optional[_Union[Values, _Mapping]] = ..., nodes: _Optional[_Union[Nodes, _Mapping]] = ..., operands: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Union[Attributes, _Mapping]] = ..., regions: _Optional[_Union[Regions, _Mapping]] = ..., functions: _Optional[_Union[Functions, _Mapping]] = ..., entry: _Optional[int] = ..., calls: _Optional[_Union[NodeFunctions, _Mapping]] = ..., references: _Optional[_Union[NodeFunctions, _Mapping]] = ..., inputs: _Optional[_Union[Inputs, _Mapping]] = ..., reads: _Optional[_Union[ReadSets, _Mapping]] = ...) -> None: ...

class Values(_message.Message):
    __slots__ = ("type", "sharding")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    type: _containers.RepeatedScalarFieldContainer[int]
    sharding: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, type: _Optional[_Iterable[int]] = ..., sharding: _Optional[_Iterable[int]] = ...) -> None: ...

class Nodes(_message.Message):
    __slots__ = ("op", "effect", "first_result", "results", "operands", "attributes")
    OP_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    FIRST_RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    op: _containers.RepeatedScalarFieldContainer[int]
    effect: _containers.RepeatedScalarFieldContainer[Effect]
    first_result: _containers.RepeatedScalarFieldContainer[int]
    results: _containers.RepeatedScalarFieldContainer[int]
    operands: _containers.RepeatedScalarFieldContainer[int]
    attributes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, op: _Optional[_Iterable[int]] = ..., effect: _Optional[_Iterable[_Union[Effect, str]]] = ..., first_result: _Optional[_Iterable[int]] = ..., results: _Optional[_Iterable[int]] = ..., operands: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Iterable[int]] = ...) -> None: ...

class Attributes(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[int]
    value: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[_Iterable[int]] = ..., value: _Optional[_Iterable[int]] = ...) -> None: ...

class Regions(_message.Message):
    __slots__ = ("owner", "first_node", "end_node", "first_argument", "arguments")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
    END_NODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    owner: _containers.RepeatedScalarFieldContainer[int]
    first_node: _containers.RepeatedScalarFieldContainer[int]
    end_node: _containers.RepeatedScalarFieldContainer[int]
    first_argument: _containers.RepeatedScalarFieldContainer[int]
    arguments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, owner: _Optional[_Iterable[int]] = ..., first_node: _Optional[_Iterable[int]] = ..., end_node: _Optional[_Iterable[int]] = ..., first_argument: _Optional[_Iterable[int]] = ..., arguments: _Optional[_Iterable[int]] = ...) -> None: ...

class Functions(_message.Message):
    __slots__ = ("node", "name", "public")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    name: _containers.RepeatedScalarFieldContainer[int]
    public: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, node: _Optional[_Iterable[int]] = ..., name: _Optional[_Iterable[int]] = ..., public: _Optional[_Iterable[bool]] = ...) -> None: ...

class NodeFunctions(_message.Message):
    __slots__ = ("node", "function")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    function: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node: _Optional[_Iterable[int]] = ..., function: _Optional[_Iterable[int]] = ...) -> None: ...

class Inputs(_message.Message):
    __slots__ = ("alias_output", "donated", "fragments")
    ALIAS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DONATED_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    alias_output: _containers.RepeatedScalarFieldContainer[int]
    donated: _containers.RepeatedScalarFieldContainer[bool]
    fragments: _containers.RepeatedCompositeFieldContainer[Fragment]
    def __init__(self, alias_output: _Optional[_Iterable[int]] = ..., donated: _Optional[_Iterable[bool]] = ..., fragments: _Optional[_Iterable[_Union[Fragment, _Mapping]]] = ...) -> None: ...

class Fragment(_message.Message):
    __slots__ = ("input", "buffer", "offset", "sizes", "strides")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    input: int
    buffer: int
    offset: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input: _Optional[int] = ..., buffer: _Optional[int] = ..., offset: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadSets(_message.Message):
    __slots__ = ("operand", "state", "reason")
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    operand: _containers.RepeatedScalarFieldContainer[int]
    state: _containers.RepeatedScalarFieldContainer[Read]
    reason: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, operand: _Optional[_Iterable[int]] = ..., state: _Optional[_Iterable[_Union[Read, str]]] = ..., reason: _Optional[_Iterable[int]] = ...) -> None: ...
