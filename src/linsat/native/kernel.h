/* Everything that works on vectors of LANES numbers: included by core.c once per instruction set. */

#define vec V(vec)
#define mask V(mask)
#define loose V(loose)
#define Own V(Own)
#define Heat V(Heat)
#define Terms V(Terms)
#define Group V(Group)
#define LanePoint V(LanePoint)
#define RowView V(RowView)
#define BLOCK (8 / LANES) /* vectors in a block of eight numbers */

typedef double vec __attribute__((vector_size(8 * LANES), may_alias));
typedef int64_t mask __attribute__((vector_size(8 * LANES), may_alias));

#include "vectors.h"
#include "shares.h"
#if LANES < 8 /* one instance at a time */
#include "matrix.h"
#include "evaluate.h"
#include "hessian.h"
#include "dense.h"
#include "start.h"
#include "iterate.h"
#include "step_system.h"
#include "interior.h"
#include "hand_over.h"
#include "quadratic_factors.h"
#include "exchange.h"
BRIEFLY
#include "fronts.h"
#include "solve.h"
#include "pull_back.h"
#include "quadratic_solve.h"
END_BRIEFLY
#endif
#if LANES > 2 || !defined(LINSAT_X86) /* as many as there are lanes */
#include "lanes.h"
#include "tiny.h"
#endif

#undef vec
#undef mask
#undef loose
#undef Own
#undef Heat
#undef Terms
#undef Group
#undef LanePoint
#undef RowView
#undef BLOCK
#undef V
#undef LANES
