/* Where older programs expect shmem.h. */
#include "../shmem.h"
