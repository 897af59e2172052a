/* SPDX-License-Identifier: Apache-2.0 */
/* Where older programs expect shmem.h. */
#include "../shmem.h"
