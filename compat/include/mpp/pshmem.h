/* SPDX-License-Identifier: Apache-2.0 */
/* Where older programs expect pshmem.h. */
#include "../pshmem.h"
