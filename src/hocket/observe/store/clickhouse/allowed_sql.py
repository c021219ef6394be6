"""Which parts of ClickHouse's SQL a query of a stranger may have: what reads the tables it names, and computes."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NODES = _words("""
    Select Union Except Intersect Subquery With CTE From Join Where Group Having Order Ordered Limit Offset
    Qualify Distinct Table TableAlias Alias Column Identifier Star Literal RawString HexString Null Boolean
    Paren Tuple Array Bracket Dot Var Cast DataType DataTypeParam Interval Case If Lambda Window WindowSpec
    Filter Add Sub Mul Div IntDiv Mod Neg DPipe EQ NEQ GT GTE LT LTE NullSafeEQ Is And Or Not Xor In Between
    Like ILike Exists
""")  # fmt: skip
"""Classes of sqlglot, besides functions."""
PARTS = _words("""
    with this expression expressions distinct from joins where group having qualify order limit offset by_name
    side kind operation_modifiers windows
""")  # fmt: skip
"""Parts of a query. Others are settings, formats, files to write into, samples and locks."""
KEYWORDS = _words("""
    and or not in as over using select from where having on then when else case between is join by union all
    except intersect distinct like ilike exists with limit offset interval inner left right full outer cross any
    semi anti asof order group qualify filter
""")  # fmt: skip
"""May stand before a parenthesis, besides functions and types."""
AGGREGATES = _words("""
    count sum avg min max any anylast argmin argmax median quantile quantiles quantileexact quantilesexact
    quantiletdigest quantileexactweighted stddevpop stddevsamp varpop varsamp covarpop covarsamp corr skewpop
    skewsamp kurtpop kurtsamp uniq uniqexact uniqcombined uniqhll12 grouparray groupuniqarray topk sumkahan
    entropy simplelinearregression stddev_pop stddev_samp var_pop var_samp covar_pop covar_samp histogram
    first_value last_value
""")  # fmt: skip
"""Aggregates, in small letters as all functions."""
FUNCTIONS = _words("""
    abs sign sqrt exp log ln log2 log10 pow power floor ceil ceiling round trunc truncate least greatest mod
    modulo intdiv plus minus multiply divide negate equals notequals less greater lessorequals greaterorequals
    and or not xor if ifnull nullif coalesce isnull isnotnull isnan isfinite isinfinite multiif nan tostring
    toint8 toint16 toint32 toint64 touint8 touint16 touint32 touint64 tofloat32 tofloat64 tobool cast length
    lower upper trim ltrim rtrim concat substring substr position positioncaseinsensitive startswith endswith
    match extract replace replaceone replaceall replaceregexpone replaceregexpall splitbychar splitbystring like
    ilike notlike left right reverse format printf array arrayjoin arraymap arrayfilter arraysum arrayavg
    arraymin arraymax arraycount arraysort arrayreversesort arraydistinct arrayexists arrayall arrayelement
    arrayslice arrayconcat arrayreverse arrayenumerate arraydifference arraycumsum arrayzip has hasany hasall
    indexof empty notempty range tuple tupleelement bar bitand bitor bitxor bitshiftleft bitshiftright
    width_bucket widthbucket row_number rank dense_rank percent_rank lag lead laginframe leadinframe ntile
    nth_value cityhash64 formatreadablesize formatreadablequantity formatreadabletimedelta mapkeys mapvalues map
    char_length strposition
""")  # fmt: skip
"""Functions that only compute."""
ENDINGS = ("if", "array", "distinct", "ornull", "ordefault")
"""Combinators of aggregates."""
TYPES = _words("""
    nullable array lowcardinality tuple decimal fixedstring string int8 int16 int32 int64 uint8 uint16 uint32
    uint64 float32 float64 bool
""")  # fmt: skip
"""Types that have parameters, or are functions."""
OF_FUNCTIONS = _words("""
    arraymap arrayfilter arraysum arrayavg arraymin arraymax arraycount arraysort arrayreversesort arrayexists
    arrayall arraydifference arraycumsum
""")  # fmt: skip
"""May be given a function: then one that is written out, for a name alone may be that of any function."""
