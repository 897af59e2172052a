/* Where older programs expect shmemx.h. */
#include "../shmemx.h"
