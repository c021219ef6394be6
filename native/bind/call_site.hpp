// Where in the user's program an operation was issued.
#pragma once

namespace hocket {

// "train.py:12" of the innermost frame that is neither hocket's nor torch's; interned, valid for the life of the
// process. Needs the GIL.
const char* call_site();

}  // namespace hocket
