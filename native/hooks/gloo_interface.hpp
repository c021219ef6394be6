// What the hooks of gloo rely on in torch: names of functions, which hold the types of their parameters, and the
// numbers of two enumerations. Outside of C++ the list is read from the symbol `hocket_gloo_interface` of the library:
// `hocket observe doctor` and the agent look these names up in the installed torch. A test compares the
// numbers with torch's.
#pragma once

// In c10d::ProcessGroupGloo. The hooks take their place.
#define HOCKET_GLOO_MAKE_GROUP                                                                                    \
  "_ZN4c10d16ProcessGroupGlooC1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_null_type" \
  "IS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE"
#define HOCKET_GLOO_MAKE_WORK                                                                                       \
  "_ZN4c10d16ProcessGroupGloo9AsyncWorkC2ESt10shared_ptrIN4gloo7ContextEESt6vectorIS6_IN2at6TensorESaIS8_EESaISA_E" \
  "ENS_6OpTypeEmNSt6chrono8durationIlSt5ratioILl1ELl1000EEEEPKcRKSt8optionalISA_E"
#define HOCKET_GLOO_ENQUEUE                                                                                            \
  "_ZN4c10d16ProcessGroupGloo7enqueueEN3c1013intrusive_ptrINS0_9AsyncWorkENS1_6detail34intrusive_target_default_null_" \
  "typeIS3_EEEE"
#define HOCKET_GLOO_EXECUTE                                                                                          \
  "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKN3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_default_nul" \
  "l_typeIS1_EEEE"
#define HOCKET_GLOO_FINISH "_ZN4c10d16ProcessGroupGloo9AsyncWork14finishWorkGlooEv"
#define HOCKET_GLOO_FAIL \
  "_ZN4c10d16ProcessGroupGloo9AsyncWork19finishWorkGlooErrorERKNSt15__exception_ptr13exception_ptrE"
#define HOCKET_GLOO_SEND "_ZN4c10d16ProcessGroupGloo4sendERSt6vectorIN2at6TensorESaIS3_EEii"
#define HOCKET_GLOO_RECV "_ZN4c10d16ProcessGroupGloo4recvERSt6vectorIN2at6TensorESaIS3_EEii"
#define HOCKET_GLOO_RECV_ANY "_ZN4c10d16ProcessGroupGloo13recvAnysourceERSt6vectorIN2at6TensorESaIS3_EEi"
#define HOCKET_GLOO_WAIT_SENT "_ZN4c10d16ProcessGroupGloo8SendWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
#define HOCKET_GLOO_WAIT_RECEIVED \
  "_ZN4c10d16ProcessGroupGloo8RecvWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
#define HOCKET_GLOO_MONITORED_BARRIER "_ZN4c10d16ProcessGroupGloo16monitoredBarrierERKNS_14BarrierOptionsEb"

// These have a root, which their options have at a fixed place (torch/csrc/distributed/c10d/Types.hpp).
#define HOCKET_GLOO_BROADCAST \
  "_ZN4c10d16ProcessGroupGloo9broadcastERSt6vectorIN2at6TensorESaIS3_EERKNS_16BroadcastOptionsE"
#define HOCKET_GLOO_REDUCE "_ZN4c10d16ProcessGroupGloo6reduceERSt6vectorIN2at6TensorESaIS3_EERKNS_13ReduceOptionsE"
#define HOCKET_GLOO_GATHER \
  "_ZN4c10d16ProcessGroupGloo6gatherERSt6vectorIS1_IN2at6TensorESaIS3_EESaIS5_EERS5_RKNS_13GatherOptionsE"
#define HOCKET_GLOO_SCATTER \
  "_ZN4c10d16ProcessGroupGloo7scatterERSt6vectorIN2at6TensorESaIS3_EERS1_IS5_SaIS5_EERKNS_14ScatterOptionsE"
#define HOCKET_GLOO_ROOT_OF_BROADCAST 0
#define HOCKET_GLOO_ROOT_OF_REDUCE 32  // after the ReduceOp
#define HOCKET_GLOO_ROOT_OF_GATHER 0
#define HOCKET_GLOO_ROOT_OF_SCATTER 0

// The hooks call these. Those of C linkage are kept stable for compiled programs
// (torch/csrc/inductor/aoti_torch/c/shim.h).
#define HOCKET_GLOO_GROUP_RANKS "_ZNK4c10d16ProcessGroupGloo10groupRanksEv"
#define HOCKET_GLOO_SOURCE_RANK "_ZNK4c10d16ProcessGroupGloo8RecvWork10sourceRankEv"
#define HOCKET_TORCH_NUMEL "aoti_torch_get_numel"
#define HOCKET_TORCH_DTYPE "aoti_torch_get_dtype"

#define HOCKET_GLOO_REPLACED(X)    \
  X(HOCKET_GLOO_MAKE_GROUP)        \
  X(HOCKET_GLOO_MAKE_WORK)         \
  X(HOCKET_GLOO_ENQUEUE)           \
  X(HOCKET_GLOO_EXECUTE)           \
  X(HOCKET_GLOO_FINISH)            \
  X(HOCKET_GLOO_FAIL)              \
  X(HOCKET_GLOO_SEND)              \
  X(HOCKET_GLOO_RECV)              \
  X(HOCKET_GLOO_RECV_ANY)          \
  X(HOCKET_GLOO_WAIT_SENT)         \
  X(HOCKET_GLOO_WAIT_RECEIVED)     \
  X(HOCKET_GLOO_MONITORED_BARRIER) \
  X(HOCKET_GLOO_BROADCAST)         \
  X(HOCKET_GLOO_REDUCE)            \
  X(HOCKET_GLOO_GATHER)            \
  X(HOCKET_GLOO_SCATTER)
#define HOCKET_GLOO_CALLED(X) \
  X(HOCKET_GLOO_GROUP_RANKS)  \
  X(HOCKET_GLOO_SOURCE_RANK)  \
  X(HOCKET_TORCH_NUMEL)       \
  X(HOCKET_TORCH_DTYPE)

// c10d::OpType, and what each is recorded as. `other` has no work of gloo's.
#define HOCKET_GLOO_OP_TYPES(X)                          \
  X(BROADCAST, 0, broadcast)                             \
  X(ALLREDUCE, 1, all_reduce)                            \
  X(ALLREDUCE_COALESCED, 2, all_reduce)                  \
  X(REDUCE, 3, reduce)                                   \
  X(ALLGATHER, 4, all_gather)                            \
  X(_ALLGATHER_BASE, 5, all_gather)                      \
  X(ALLGATHER_COALESCED, 6, all_gather)                  \
  X(GATHER, 7, gather)                                   \
  X(SCATTER, 8, scatter)                                 \
  X(REDUCE_SCATTER, 9, reduce_scatter)                   \
  X(ALLTOALL_BASE, 10, all_to_all)                       \
  X(ALLTOALL, 11, all_to_all)                            \
  X(SEND, 12, send)                                      \
  X(RECV, 13, recv)                                      \
  X(RECVANYSOURCE, 14, recv)                             \
  X(BARRIER, 15, barrier)                                \
  X(_REDUCE_SCATTER_BASE, 16, reduce_scatter)            \
  X(COALESCED, 17, other)                                \
  X(_ALLREDUCE_SPARSE, 18, all_reduce)                   \
  X(REDUCE_SCATTER_TENSOR_COALESCED, 19, reduce_scatter) \
  X(UNKNOWN, 100, other)

// c10::ScalarType, as far as hocket has the type.
#define HOCKET_TORCH_SCALAR_TYPES(X) \
  X(uint8, 0, uint8)                 \
  X(int8, 1, int8)                   \
  X(int16, 2, int16)                 \
  X(int32, 3, int32)                 \
  X(int64, 4, int64)                 \
  X(float16, 5, float16)             \
  X(float32, 6, float32)             \
  X(float64, 7, float64)             \
  X(complex64, 9, complex64)         \
  X(complex128, 10, complex128)      \
  X(bool, 11, boolean)               \
  X(bfloat16, 15, bfloat16)          \
  X(uint16, 27, uint16)              \
  X(uint32, 28, uint32)              \
  X(uint64, 29, uint64)
