// Keeps hocket's own use of torch out of what is recorded; src/hocket/trace/foreign.py calls it.
#include "hooks/hooks.hpp"

HOCKET_HOOK void hocket_makes_own_groups(int makes_them) { hocket::hooks::t_makes_groups_of_hocket = makes_them != 0; }
